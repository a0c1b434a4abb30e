"""Providers behind one gateway: ledger, cache, prices, retries."""
