"""Profile of a compiled model, and its tables: the output of `poprt --show_profile`.

`commands.profile` opens models to profile them, and has sweeps, plots and traces.
"""
