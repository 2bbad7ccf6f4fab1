"""Where private rows lie: on one device, or sharded over several."""
