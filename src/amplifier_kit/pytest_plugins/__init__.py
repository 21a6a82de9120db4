"""The two pytest plugins, loaded in every environment that has Amplifier: they import nothing until used."""
