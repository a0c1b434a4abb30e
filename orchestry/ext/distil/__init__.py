"""`orchestry distil`: weights taught by answers: of winners, of gold, of a teacher, or in pairs."""
