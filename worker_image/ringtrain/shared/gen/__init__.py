"""Generated from proto/ by `make generate`; not edited by hand."""
