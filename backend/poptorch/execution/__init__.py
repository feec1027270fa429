"""From a captured model to results: compiled, loaded on a device, run in steps, saved to files."""
