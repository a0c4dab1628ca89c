"""How the processes of a run meet, and how they notice that one of them is stuck or gone."""
