"""Feeds: infeed and outfeed queues, and the loops whose bodies use them."""
