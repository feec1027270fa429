"""Safety of processes: time limits, forks, confinement, and folders that only this user can read.

Nothing here knows of graphs. Other rooms import the public names from `simipu`.
"""
