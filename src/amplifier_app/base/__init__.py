"""The process and the disk: errors, outcome, standard streams, signals, paths, locks, keys."""
