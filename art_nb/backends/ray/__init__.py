"""RayBackend: samplers and learners in Ray actors, on one machine or many. Does not depend on tasks or rewards."""
