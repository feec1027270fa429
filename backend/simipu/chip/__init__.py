"""The chip: its description, its modelled clock, and the places of nodes on its IPUs."""
