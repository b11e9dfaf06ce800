"""``fedmosaic analyse``: how alike the clients of a finished run see, and what a round costs them.

Clients keep no model between the rounds of most methods, so one further round is played from the
run's checkpoint, with the clients asked for, and thrown away again: what they upload is analysed.
"""
