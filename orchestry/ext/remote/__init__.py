"""`orchestry remote`: runs on a machine of yours, over ssh and rsync."""
