"""Messages with a delay level (property DELAY): they wait in SCHEDULE_TOPIC_XXXX and are delivered when they are due.

waiting.py            a message on its way into a level, and out of it again (pure)
delayed_delivery.py   delivers; how far a level is delivered, and how much of that may be saved
"""
