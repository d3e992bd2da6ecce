"""Stands in for setuptools while pip fetches a source distribution; see `build_meta`."""
