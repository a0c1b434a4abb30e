"""`orchestry judge check`: how far a judge can be trusted, on answers of known worth."""
