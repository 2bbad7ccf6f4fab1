"""What several processes of one program tell each other."""
