"""Line charts as inline SVG, with no script."""
