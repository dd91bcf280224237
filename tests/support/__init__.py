"""What tests share: models, images, problems with known answers, small runs."""
