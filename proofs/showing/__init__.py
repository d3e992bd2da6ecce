"""A trace as a picture: a page, an image, a file for Perfetto."""
