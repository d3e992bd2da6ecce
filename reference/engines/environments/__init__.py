"""Light environments in which releases of real engines run: one for the packages an engine needs, a folder for each release."""
