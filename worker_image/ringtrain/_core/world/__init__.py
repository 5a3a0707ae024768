"""Which ranks there are, how they find and trust each other, and how they learn that one is gone."""
