"""Where sessions are kept between turns."""
