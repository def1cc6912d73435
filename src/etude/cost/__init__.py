"""What things cost: operators, collectives and messages on a System."""
