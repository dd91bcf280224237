"""Names of classes that a data set itself numbers only."""

GTSRB = (
    "speed limit 20", "speed limit 30", "speed limit 50", "speed limit 60", "speed limit 70", "speed limit 80",
    "end of speed limit 80", "speed limit 100", "speed limit 120", "no overtaking", "no overtaking by lorries",
    "right of way at the next crossing", "priority road", "give way", "stop", "no vehicles", "no lorries",
    "no entry", "danger", "bend to the left", "bend to the right", "double bend", "uneven road", "slippery road",
    "road narrows on the right", "road works", "traffic lights", "pedestrians", "children", "bicycles",
    "ice or snow", "wild animals", "end of all limits", "turn right", "turn left", "ahead only",
    "ahead or right", "ahead or left", "keep right", "keep left", "roundabout", "end of no overtaking",
    "end of no overtaking by lorries",
)  # fmt: skip
