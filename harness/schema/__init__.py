"""The layouts of what plegate writes for machines, one file each, versioned by their `$id`. There is no code here."""
