"""Where private rows lie: on one device, or dealt out over several."""
