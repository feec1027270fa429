"""Tools that popef and every room above it use: escaping, console, arguments and atomic files.

Nothing here knows the PopEF format, and nothing here belongs to popef's public interface.
"""
