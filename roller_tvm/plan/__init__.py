"""rTiles, rPrograms, alignment rules and their construction."""
