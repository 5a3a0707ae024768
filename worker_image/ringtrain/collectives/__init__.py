"""The collectives: arithmetic (`fold`), exchange between ranks (`exchange`), and what users call (`api`)."""
