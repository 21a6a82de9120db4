"""What runs rows: `engine` is the interface, `local` the processes of this machine."""
