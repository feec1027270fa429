"""Profile of a compiled model, and its tables: the output of `poprt --show_profile`.

`poplar_triton.profile` opens models to profile them, and has sweeps, plots and traces.
"""
