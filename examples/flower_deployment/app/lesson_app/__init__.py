"""A Flower app that trains a task of LESSON, such as MNIST split among the clients, with LessonStrategy."""
