"""How documents are cut, and what is embedded in front of each part."""
