"""World, the ranks that train together: discovery of its ranks, their authentication, and detection of lost ones."""
