"""What a model would take on the chip, asked before there is one: opening it, the cost model's answer under
many settings, and how that is shown."""
