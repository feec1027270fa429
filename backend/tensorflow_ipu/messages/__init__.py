"""Messages of the Poplar plug-in: those of the real library by package, names and numbers.

`make proto` writes the Python modules. Of backend_config.proto only what Python uses is here.
"""
