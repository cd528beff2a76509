"""A PyTorch app for Flower that trains with LESSON."""
