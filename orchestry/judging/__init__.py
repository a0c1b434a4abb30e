"""`orchestry judge check`: a judge, measured before a user trusts it."""
