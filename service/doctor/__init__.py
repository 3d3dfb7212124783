"""`outlast doctor`: what is wrong with a configuration and a deployment, and what to change."""
