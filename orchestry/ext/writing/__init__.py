"""`orchestry tasks generate`: a model writes problems, which are checked before they are kept."""
