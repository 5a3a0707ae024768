"""The log store: how lines become records, and how records become files that survive a kill."""
