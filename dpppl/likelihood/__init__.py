"""The form of a model's likelihood, found without data.

search: the sites that it can be measured in. symmetry: latents that may change places or signs. unnamed: values without a name,
through which alone rows know latents, and their cure."""
