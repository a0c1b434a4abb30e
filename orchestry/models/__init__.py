"""Language models behind one door: providers, the gateway, its ledger, cache and prices."""
