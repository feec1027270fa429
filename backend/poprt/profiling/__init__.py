"""The profile of what has been compiled, and its tables: what `poprt --show_profile` shows.

Opening models to profile them, sweeps, plots and traces are `commands.profile`.
"""
