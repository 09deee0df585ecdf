"""The commands of `plegate`, one file each, and the options and progress that they share."""
