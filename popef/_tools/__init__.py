"""Tools that popef and every room above it use: escaping, console, arguments, atomic files and
child processes.

Nothing here knows the PopEF format, and nothing here belongs to popef's public interface.
"""
