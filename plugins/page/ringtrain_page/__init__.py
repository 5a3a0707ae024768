"""Page of a run: all data of its log store as one HTML file, or served live."""
