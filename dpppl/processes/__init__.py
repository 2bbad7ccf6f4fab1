"""Messages between the processes of one program."""
