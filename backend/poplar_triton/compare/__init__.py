"""The command `poplar-triton compare`: chips, modelled, beside this machine, measured."""
